"""The balance of each account after each of its transfers: its history. The last row up to a moment has that one's.

Transfers count in the order in which they are booked, also where they arrive in another, and once, also where they are
told twice: it reads what `unique_transfers` lets through. What an account began with is its first transfer.
"""

from tidemark import Between, Conservation, NotNull, Pipeline, Running, Sink, Table, Watermark

account_balances = Pipeline(
    name="account_balances",
    source=Table("bronze.unique_transfers"),
    event_time="booked_at",
    watermark=Watermark(delay="10 minutes"),
    steps=(Running(by=("account",), measures={"balance": "sum(amount)", "transfers": "count(*)"}),),
    sink=Sink("gold.account_balances"),
    expectations=(NotNull("account"), NotNull("balance"), Between("transfers", min=1), Conservation()),
    trigger_interval="10 seconds",
    description="The balance of each account after each of its transfers.",
    owner="bank",
    column_descriptions={
        "transfer_id": "Number of the transfer.",
        "account": "Whose balance it is.",
        "amount": "What came, or left where it is negative, EUR.",
        "booked_at": "Since when the balance is this, UTC.",
        "balance": "Sum of all transfers of the account up to this one, EUR.",
        "transfers": "How many these are.",
    },
)
