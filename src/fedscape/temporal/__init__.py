"""Learning through day and night: who is available when, temporal priors, FedTEM, FedTKM and their baselines."""
