"""Operations of many clients on a GPU, in Triton: the twins of those in `conv`, `norms`, `pooling` and `recurrence`."""
