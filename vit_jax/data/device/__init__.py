"""What happens to batches on the devices: crops, colours, mixing."""
