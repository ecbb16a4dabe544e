//! HTTP router in front of replicas: proxy, policies, prefix tree, health, metrics. No Python.
