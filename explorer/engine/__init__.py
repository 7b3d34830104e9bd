"""Engine: reads, analyzes, changes and runs models. It never imports the user interfaces."""
