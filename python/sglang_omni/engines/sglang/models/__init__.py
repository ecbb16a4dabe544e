"""Models of ours that SGLang runs. It imports every module of this package."""
