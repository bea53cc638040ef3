"""One pass over a queue by an operator: some of its messages are moved or dropped, and all others stay."""
