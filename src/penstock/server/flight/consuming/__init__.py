"""DoExchange: deliveries to Flight consumers, and what they say of them."""
