"""The main screen: its layout, how it loads a model, and how it saves and restores its state."""
