"""Router and experts as one velocity, requests for samples, and what becomes of them."""
