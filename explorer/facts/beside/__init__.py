"""What lies beside the layers and comes from elsewhere: figures of a file, the providers that run them."""
