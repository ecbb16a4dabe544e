"""Our models for SGLang's model runner. SGLang imports every module of this package."""
