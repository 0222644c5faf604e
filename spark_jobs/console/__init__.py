"""What a person sees on the terminal: live progress, tables, the ledger, the demonstration."""
