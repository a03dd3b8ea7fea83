"""What the preemptor decides, pure: when a claim may be judged (`ready`), who may be displaced (`displace`), how much room there is
(`rooms`), the cheapest set that makes enough (`search`), the answer (`judge`) and how it reads (`sentences`).

Never reads a clock, a database or a message.
"""
