"""Qwen2.5-Omni: text, images, audio and video in, text and speech out."""
