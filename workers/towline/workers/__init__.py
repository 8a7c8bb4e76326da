"""The workers: deterministic replay of workflows over run logs, under a lease. Read machine first."""
