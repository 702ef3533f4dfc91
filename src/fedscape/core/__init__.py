"""The room of a round: clients and their rows, what they compute, who takes part, where they live."""
