"""Schedulers: what runs a stage's work, behind one interface of an inbox and an outbox."""
