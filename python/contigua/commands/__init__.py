"""Commands about ageing, one file each; ``cli`` lists them."""
