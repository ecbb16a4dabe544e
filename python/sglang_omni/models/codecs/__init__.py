"""Parts of neural audio codecs, which several model families share: waves to codes, and codes to waves."""
