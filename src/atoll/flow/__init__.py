"""The mathematics: tensors in, tensors out; imports nothing of ours."""
