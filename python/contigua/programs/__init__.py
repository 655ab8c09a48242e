"""Programs that come with the package: commands, servers, and the clients that drive them."""
