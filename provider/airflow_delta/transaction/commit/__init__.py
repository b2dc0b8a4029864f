"""The optimistic transaction: its public class, the put of its log entry, and the hooks after it."""
