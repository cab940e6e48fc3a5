"""An alert drill: a cluster and a real Prometheus, in which the fault of each alert is injected and healed."""
