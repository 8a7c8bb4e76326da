"""The gateway: serves run logs and takes commands over WebSocket and HTTP; holds no state but cursors."""
