"""Commands that change the model or write it, and those that prove, compare and go back."""
