"""Chargeback: what a GPU hour costs (`pricing`, `cards`), what was used at which price (`rating`, `lines`), and what is made of it."""
