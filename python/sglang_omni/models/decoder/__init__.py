"""Parts of every model whose decoder an engine steps: options, memory, prompts, and answers in text."""
