//! Chats whose media are encoded apart: the text is that of one engine alone.
