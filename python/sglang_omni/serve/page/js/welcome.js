/* The empty page: what this is, and three examples to click that fit the model. */

import { el, icon } from "./dom.js";

const TYPED = [
  { icon: "chat", title: "Ask a question", text: "What is the capital of France?" },
  { icon: "edit", title: "Have it write", text: "Write a Python function that adds two numbers." },
  { icon: "chat", title: "Have it explain", text: "Why is the sky blue? Answer in two sentences." },
];
const SPOKEN_QUESTION = "Name three planets of our solar system.";

/** Fills the element; `ask` sends a message, and `request` a request (see api.js). */
export function mountWelcome(element, { model, ask, request, say }) {
  const takes = (kind) => model.input_modalities?.includes(kind);
  const examples = [...TYPED];
  if (takes("audio") && model.tasks?.includes("speech")) {
    examples[2] = {
      icon: "wave", title: "Ask aloud", text: `A recorded “${SPOKEN_QUESTION}”`,
      message: async () => ({ media: [await spokenQuestion(request)] }),
    };
  }
  if (takes("image")) {
    examples[1] = {
      icon: "picture", title: "Show a picture", text: "What do you see in this picture?",
      message: async () => ({ text: "What do you see in this picture?", media: [await drawnPicture()] }),
    };
  }
  const click = async ({ text, message }) => {
    try {
      ask(message ? await message() : { text });
    } catch (error) {
      say(error.message, { bad: true });
    }
  };
  element.replaceChildren(...[
    el("h2", {}, `Talk to ${model.served_model_name ?? "the model"}`),
    el("p", {}, sentence(model)),
    model.random_weights ? el("p", { class: "warning" }, RANDOM) : null,
    el("ul", { class: "examples" }, examples.map((example) =>
      el("li", {}, el("button", { type: "button", onclick: () => click(example) },
        icon(example.icon), el("strong", {}, example.title), el("span", {}, example.text))))),
    el("p", { class: "muted" }, "What you say goes to this server alone. Your conversations are kept in this browser."),
  ].filter(Boolean));
}

const RANDOM =
  "This model's weights are random: what it writes means nothing, and its speech is noise. It shows that the parts work.";

function sentence({ input_modalities: takes = ["text"], output_modalities: gives = ["text"] }) {
  const senses = { text: "reads", audio: "hears", image: "sees pictures", video: "watches videos" };
  const does = ["text", "audio", "image", "video"].filter((kind) => takes?.includes(kind)).map((kind) => senses[kind]);
  const ways = gives?.includes("audio") ? "answers in writing and aloud" : "answers in writing";
  return `This model ${[...does, ways].join(", ").replace(/, ([^,]+)$/, " and $1")}.`;
}

/* The model's own voice asks, so that the example needs no microphone. */
async function spokenQuestion(request) {
  const response = await request("v1/audio/speech", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ input: SPOKEN_QUESTION, response_format: "wav" }),
  });
  if (!response.ok) throw new Error("The question could not be spoken. Type one instead.");
  return { kind: "audio", name: "question.wav", blob: new Blob([await response.arrayBuffer()], { type: "audio/wav" }) };
}

function drawnPicture() {
  const canvas = el("canvas");
  [canvas.width, canvas.height] = [480, 320];
  const pen = canvas.getContext("2d");
  const shapes = [["#cfe3f1", 0, 0, 480, 200], ["#7fa66a", 0, 200, 480, 120], ["#a9573f", 150, 130, 120, 100], ["#f5efe0", 195, 175, 32, 55]];
  for (const [colour, ...box] of shapes) { pen.fillStyle = colour; pen.fillRect(...box); }
  pen.fillStyle = "#713a2b";
  pen.beginPath();
  pen.moveTo(135, 130); pen.lineTo(210, 75); pen.lineTo(285, 130);
  pen.fill();
  pen.fillStyle = "#f2c14e";
  pen.beginPath();
  pen.arc(390, 75, 34, 0, 7);
  pen.fill();
  return new Promise((resolve) => canvas.toBlob((blob) => resolve({ kind: "image", name: "house.png", blob })));
}
