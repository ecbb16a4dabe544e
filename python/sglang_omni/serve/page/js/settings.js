/* What the person has set: kept in the browser, shown in the settings' panel, and sent with each request. */

import { decodesOpus } from "./opus.js";

const STORED = "settings";
const DEFAULTS = { speak: true, voice: "", temperature: NaN, tokens: 400, system: "", theme: "system" };
/* Where the slider stands while nothing is set: a usual model's own value. */
const USUAL_TEMPERATURE = 0.7;

/** The values, as attributes. Its event "change" tells of a new one. */
export class Settings extends EventTarget {
  #values = { ...DEFAULTS, ...stored() };
  #model = {};

  /** @param model what `/get_model_info` says, and `voices`. */
  set model(model) {
    this.#model = model;
    this.dispatchEvent(new Event("change"));
  }

  get model() {
    return this.#model;
  }

  get canSpeak() {
    return this.#model.output_modalities?.includes("audio") ?? false;
  }

  /** Whether answers are spoken. */
  get speak() { return this.#values.speak && this.canSpeak; }

  /** The voice's name; "" for the model's own. */
  get voice() { return this.#model.voices?.includes(this.#values.voice) ? this.#values.voice : ""; }

  /** How freely the model picks its words: 0 to 2; null for the model's own. */
  get temperature() { return Number.isNaN(this.#values.temperature) ? null : this.#values.temperature; }

  /** The most tokens of an answer. */
  get tokens() { return this.#values.tokens; }

  /** The system prompt; "" for none. */
  get system() { return this.#values.system.trim(); }

  /** "system", "light" or "dark". */
  get theme() { return this.#values.theme; }

  set(name, value) {
    this.#values[name] = value;
    try {
      localStorage.setItem(STORED, JSON.stringify(this.#values));
    } catch { /* A browser that keeps nothing: the settings hold for as long as the page is open. */ }
    this.dispatchEvent(new Event("change"));
  }

  reset() {
    for (const [name, value] of Object.entries(DEFAULTS)) if (name !== "theme") this.set(name, value);
  }

  /** The fields that they are in a request for an answer. */
  body() {
    return {
      ...(this.#model.served_model_name ? { model: this.#model.served_model_name } : {}),
      ...(this.temperature === null ? {} : { temperature: this.temperature }),
      max_tokens: this.tokens,
      modalities: this.speak ? ["text", "audio"] : ["text"],
      ...(this.speak ? { audio: { format: decodesOpus ? "opus" : "pcm16", ...(this.voice ? { voice: this.voice } : {}) } } : {}),
    };
  }
}

function stored() {
  try {
    const values = JSON.parse(localStorage.getItem(STORED) ?? "{}");
    /* What an older page or a person has put there may be of another type. JSON has no NaN, but null. */
    return Object.fromEntries(Object.entries(values).filter(([name, value]) => typeof value === typeof DEFAULTS[name]));
  } catch {
    return {};
  }
}

/** Fills the panel's form, whose controls have the settings' names. */
export function settingsPanel(form, settings) {
  const { speak, voice, temperature, tokens, system, theme } = form.elements;
  const outputs = { temperature: form.querySelector("#temperature-value"), tokens: form.querySelector("#tokens-value") };
  const show = () => {
    speak.checked = settings.speak;
    speak.disabled = !settings.canSpeak;
    const voices = settings.model.voices ?? [];
    if (voice.options.length !== voices.length + 1) {
      voice.replaceChildren(new Option("The model's own", ""), ...voices.map((name) => new Option(name, name)));
    }
    voice.value = settings.voice;
    voice.disabled = !settings.canSpeak || !voices.length;
    temperature.value = settings.temperature ?? USUAL_TEMPERATURE;
    outputs.temperature.textContent = settings.temperature?.toFixed(1) ?? "the model's own";
    tokens.value = settings.tokens;
    if (document.activeElement !== system) system.value = settings.system;
    theme.value = settings.theme;
    document.documentElement.dataset.theme = settings.theme;
  };
  const explain = () => {
    outputs.tokens.textContent = tokens.validity.valid ? "" : `Give a whole number from ${tokens.min} to ${tokens.max}.`;
    tokens.setAttribute("aria-invalid", String(!tokens.validity.valid));
  };
  form.addEventListener("input", ({ target }) => {
    explain();
    if (!target.validity.valid) return;
    const value = { checkbox: target.checked, range: target.valueAsNumber, number: target.valueAsNumber }[target.type];
    settings.set(target.name, value ?? target.value);
  });
  tokens.addEventListener("blur", () => { tokens.value = settings.tokens; explain(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => { event.preventDefault(); settings.reset(); });
  settings.addEventListener("change", show);
  show();
}
