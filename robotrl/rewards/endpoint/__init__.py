"""Client of a served vision-language model that speaks the chat completions protocol."""
