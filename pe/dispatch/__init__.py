"""API work: cut into chunks, asked in parallel, committed answer by answer, within limits."""
