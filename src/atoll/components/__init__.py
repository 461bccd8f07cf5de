"""Parts that come and go: made on data that stays at home, added, dropped, and samples forgotten."""
