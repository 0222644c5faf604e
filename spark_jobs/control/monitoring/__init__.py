"""How it fares: looks, breaches of health, alerts and what people have said of them."""
