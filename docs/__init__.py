"""Plain Markdown, and the program that writes the generated parts of it."""
