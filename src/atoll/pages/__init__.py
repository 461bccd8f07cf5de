"""What a person looks at: pages that need nothing but a browser."""
