"""The only part of a turn that does IO."""
