"""The domain (jobs, runs, policies, tasks), the contracts that backends implement, and helpers for background loops."""
