// Server-sent events out of text that comes in pieces. EventSource would do that too, but can send no token.

/** Feed it text; it gives the data of each event that is whole, as JSON. A comment gives nothing. */
export class Events {
  #rest = "";

  feed(text) {
    const parts = (this.#rest + text).split("\n\n");
    this.#rest = parts.pop();
    const data = parts.map((part) => part.split("\n").filter((line) => line.startsWith("data: ")));
    return data.filter((lines) => lines.length).map((lines) => JSON.parse(lines.map((line) => line.slice(6)).join("\n")));
  }
}
