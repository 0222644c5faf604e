"""What is to run: orders, and deploys that write them."""
