"""What a text's phonemes sound like, how long they last, and the pitch and energy of their speech.

After the authors' ``modules.py`` (kokoro 0.9.4), whose names of weights these have.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sglang_omni.models.kokoro.components.styled import StyledBlock


class TextEncoder(nn.Module):
    """Phonemes to what they sound like: int64 (1, n) to (1, channels, n)."""

    def __init__(self, channels: int, kernel: int, depth: int, symbols: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, channels)
        self.cnn = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(channels, channels, kernel, padding=(kernel - 1) // 2), _ChannelNorm(channels)
            )
            for _ in range(depth)
        )
        self.lstm = _lstm(channels, channels)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids).transpose(1, 2)
        for block in self.cnn:
            x = F.leaky_relu(block(x), 0.2)
        return _packed(self.lstm, x.transpose(1, 2)).transpose(1, 2)


class ProsodyPredictor(nn.Module):
    def __init__(self, style: int, hidden: int, layers: int, max_duration: int) -> None:
        super().__init__()
        self.text_encoder = DurationEncoder(style, hidden, layers)
        self.lstm = _lstm(hidden + style, hidden)
        self.duration_proj = nn.ModuleDict({"linear_layer": nn.Linear(hidden, max_duration)})
        self.shared = _lstm(hidden + style, hidden)
        self.F0 = _curve_blocks(hidden, style)
        self.N = _curve_blocks(hidden, style)
        self.F0_proj = nn.Conv1d(hidden // 2, 1, 1)
        self.N_proj = nn.Conv1d(hidden // 2, 1, 1)

    def durations(self, x: Tensor) -> Tensor:
        """How long each phoneme lasts at speed 1, in steps of 25 ms: (1, n, channels) to (1, n)."""
        x, _ = self.lstm(x)
        return torch.sigmoid(self.duration_proj["linear_layer"](x)).sum(-1)

    def curves(self, x: Tensor, style: Tensor) -> tuple[Tensor, Tensor]:
        """Pitch in Hz and energy: of steps (1, n, channels), two of each (1, 2 n)."""
        x, _ = self.shared(x)
        pitch = energy = x.transpose(1, 2)
        for block in self.F0:
            pitch = block(pitch, style)
        for block in self.N:
            energy = block(energy, style)
        return self.F0_proj(pitch)[:, 0], self.N_proj(energy)[:, 0]


class DurationEncoder(nn.Module):
    """Features (1, channels, n) of phonemes to features with the style, (1, n, channels + style size)."""

    def __init__(self, style: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.lstms = nn.ModuleList()
        for _ in range(layers):
            self.lstms.append(_lstm(hidden + style, hidden))
            self.lstms.append(_StyledLayerNorm(style, hidden))

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        said = style[:, None].expand(-1, x.shape[2], -1)
        x = torch.cat([x.transpose(1, 2), said], dim=2)
        for lstm, norm in zip(self.lstms[::2], self.lstms[1::2], strict=True):
            x = torch.cat([norm(_packed(lstm, x), style), said], dim=2)
        return x


class _ChannelNorm(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.transpose(1, 2), self.gamma.shape, self.gamma, self.beta).transpose(1, 2)


class _StyledLayerNorm(nn.Module):
    def __init__(self, style: int, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.fc = nn.Linear(style, 2 * channels)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        gain, shift = self.fc(style)[:, None].chunk(2, dim=2)
        y: Tensor = (1 + gain) * F.layer_norm(x, (self.channels,)) + shift
        return y


def _curve_blocks(hidden: int, style: int) -> nn.ModuleList:
    half = hidden // 2
    return nn.ModuleList(
        [
            StyledBlock(hidden, hidden, style),
            StyledBlock(hidden, half, style, doubles=True),
            StyledBlock(half, half, style),
        ]
    )


def _lstm(size: int, out: int) -> nn.LSTM:
    return nn.LSTM(size, out // 2, batch_first=True, bidirectional=True)


def _packed(lstm: nn.Module, x: Tensor) -> Tensor:
    """Of one packed sequence, as the authors compute it: that rounds otherwise than an unpacked one."""
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([x.shape[1]]), batch_first=True)
    y: Tensor = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)[0]
    return y
