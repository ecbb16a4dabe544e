"""Schedulers: they run a stage's work behind one interface, an inbox and an outbox."""
