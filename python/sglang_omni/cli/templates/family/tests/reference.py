"""What is right: a loop that computes all from scratch. The published implementation goes in its place."""

import torch
from my_family.model import LETTERS, load_vocoder, read_config
from safetensors.torch import load_file
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from sglang_omni.testing import Answer, Case


class PlainLoop:
    def __init__(self, model_path: str):
        self.weights = load_file(f"{model_path}/model.safetensors")
        self.shape = read_config(model_path)["decoder"]
        self.vocoder = load_vocoder(model_path)

    @torch.inference_mode()
    def answers(self, case: Case) -> Answer:
        tokens = list(case.inputs["text"].encode())
        codes: list[int] = []
        while len(codes) < case.params["max_new_tokens"]:
            token = LETTERS + int(self.logits(tokens)[LETTERS:].argmax())
            if token == self.shape["eos_token_id"]:
                break
            tokens.append(token)
            codes.append(token - LETTERS)
        samples = self.vocoder(torch.tensor(codes, dtype=torch.long), torch.zeros(0, dtype=torch.long))
        return Answer(codes=[[code] for code in codes], samples=samples.numpy())

    def logits(self, tokens: list[int]) -> torch.Tensor:
        w, heads = self.weights, self.shape["num_attention_heads"]
        x = w["decoder.embed.weight"][tokens]
        for layer in range(self.shape["num_hidden_layers"]):
            prefix = f"decoder.layers.{layer}."
            own = {key.split(".")[-2]: each for key, each in w.items() if key.startswith(prefix)}
            y = norm(x, own["input_layernorm"])
            q, k, v = (linear(y, own[f"{part}_proj"]).unflatten(1, (heads, -1)) for part in "qkv")
            q, k, v = rotate(q.transpose(0, 1)), rotate(k.transpose(0, 1)), v.transpose(0, 1)
            y = scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + linear(y.transpose(0, 1).flatten(1), own["o_proj"])
            y = norm(x, own["post_attention_layernorm"])
            x = x + linear(silu(linear(y, own["gate_proj"])) * linear(y, own["up_proj"]), own["down_proj"])
        return w["decoder.head.weight"] @ norm(x[-1], w["decoder.norm.weight"])


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def rotate(x: torch.Tensor) -> torch.Tensor:
    """(heads, tokens, dim): the halves of a head turn by their place's angle."""
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[1]), 10_000.0 ** (-torch.arange(half) / half))
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
