/* The page's parts, joined. */

import { json, request } from "./api.js";
import { Attachments } from "./attachments.js";
import { mountComposer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { mountConversations } from "./conversations.js";
import { mountInside } from "./inside/inside.js";
import { mountPanel } from "./panels.js";
import { Settings, settingsPanel } from "./settings.js";
import { mountShortcuts } from "./shortcuts.js";
import { openStorage } from "./storage.js";
import { mountLog } from "./turns/log.js";
import { Player } from "./voice/player.js";
import { mountVoice } from "./voice/voice.js";
import { mountWelcome } from "./welcome.js";

const $ = (id) => document.getElementById(id);

/* Tells the person something in the line below the message. */
function say(message, { bad = false } = {}) {
  $("status").textContent = message;
  $("status").classList.toggle("bad", bad);
}

const settings = new Settings();
const player = new Player();
const conversation = new Conversation({ request, settings });
const attachments = new Attachments({ list: $("attachments"), say });
const composer = mountComposer({ form: $("composer"), conversation, attachments, player, say });

conversation.addEventListener("sound", ({ detail }) => player.play(detail.samples, detail.rate));
conversation.addEventListener("stop", () => player.stop());
conversation.addEventListener("progress", ({ detail }) => say(detail));

mountLog({
  scroller: $("scroller"), list: $("log"), jump: $("jump"), welcome: $("welcome"), conversation,
  actions: {
    edit: (turn) => composer.edit(turn),
    regenerate: (turn) => conversation.regenerate(turn),
    shorten: (turn) => conversation.shorten(turn),
    goOn: (turn) => conversation.goOn(turn),
    play: (samples, rate) => { conversation.stop(); player.play(samples, rate); },
  },
});

mountVoice({ composer: $("composer"), toolbar: $("voice-tools"), conversation, settings, say });

settingsPanel($("settings-form"), settings);
const SIDE = "(min-width: 70rem)";
const inside = mountPanel({ dialog: $("inside"), button: $("show-inside"), docks: SIDE });
mountInside($("inside-content"), { request, conversation });
const setting = mountPanel({ dialog: $("settings"), button: $("show-settings"), docks: SIDE });
const kept = mountPanel({ dialog: $("conversations"), button: $("show-conversations"), docks: "(min-width: 80rem)", isOpen: true });

const conversations = mountConversations({
  list: $("conversation-list"), search: $("conversation-search"), conversation, storage: await openStorage(), say,
  opened: () => { kept.close(); composer.focus(); },
});
for (const button of document.querySelectorAll("[data-begins]")) button.addEventListener("click", conversations.begin);
mountShortcuts({
  dialog: $("shortcuts"), list: $("shortcut-list"), button: $("show-shortcuts"),
  does: { stop: () => conversation.stop(), write: composer.focus, begin: conversations.begin, settings: setting.open },
});

async function learnModel() {
  const model = await json("get_model_info");
  if (!model) {
    say("The server does not answer. Reload the page to try again.", { bad: true });
    return;
  }
  const told = model.output_modalities?.includes("audio") ? await json("v1/audio/voices") : null;
  settings.model = { ...model, voices: told?.voices ?? [] };
  $("model").textContent = model.served_model_name;
  document.title = `Talk to ${model.served_model_name}`;
  attachments.kinds = ["image", "audio", "video"].filter((kind) => model.input_modalities?.includes(kind));
  $("attach").hidden = !attachments.kinds.length;
  $("file").accept = attachments.accept;
  $("random").hidden = !model.random_weights;
  mountWelcome($("welcome"), { model, ask: composer.ask, request, say });
}

await Promise.all([learnModel(), conversations.start()]);
composer.focus();
document.body.dataset.ready = "";
