"""One template per study of findings, with its queries; `order` in its header is its place in the list."""
