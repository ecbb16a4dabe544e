"""Language models: text in, text out, from any checkpoint that an engine has a class for."""
