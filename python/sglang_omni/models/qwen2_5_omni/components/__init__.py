"""The models of Qwen2.5-Omni: encoders, decoders and the codec, and the checkpoint that holds them."""
