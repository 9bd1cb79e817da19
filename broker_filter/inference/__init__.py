"""Network input, encoder, evidence, posterior, certified K, zoo."""
