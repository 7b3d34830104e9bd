"""Engine: everything that knows about models. Never imports what draws them."""
