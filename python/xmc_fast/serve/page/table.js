// A table up, the tagged table down, with its progress.

import { call, element } from "./api.js";

export async function tagTable(path, { k, threshold }) {
  const file = element("file").files[0];
  const query = new URLSearchParams({ k });
  if (threshold) query.set("threshold", threshold);
  const columns = element("columns").value.trim();
  if (columns) query.set("text", columns);
  const link = element("tagged");
  link.hidden = true;
  show(0, 1, "Sending the table …");
  try {
    const answer = await call(`${path}?${query}`, { method: "POST", body: file, headers: { "Content-Type": "text/csv" } });
    const rows = Number(answer.headers.get("X-Rows"));
    const parts = await read(answer.body.getReader(), rows);
    if (link.href) URL.revokeObjectURL(link.href);
    link.href = URL.createObjectURL(new Blob(parts, { type: "text/csv" }));
    link.download = file.name.replace(/(\.\w+)?$/, "-tagged.csv");
    link.hidden = false;
    show(rows, rows, `${rows.toLocaleString("en")} rows tagged.`);
  } catch (error) {
    element("progress").hidden = true;
    element("upload-status").textContent = "";
    throw error;
  }
}

// The whole answer. Rows end at line breaks outside of quotes.
async function read(reader, rows) {
  const parts = [];
  let done = -1; // without the header
  let quoted = false;
  for (;;) {
    const { value, done: end } = await reader.read();
    if (end) break;
    parts.push(value);
    for (const byte of value) {
      if (byte === 34) quoted = !quoted;
      else if (byte === 10 && !quoted) done += 1;
    }
    show(done, rows, `${done.toLocaleString("en")} of ${rows.toLocaleString("en")} rows`);
  }
  if (done < rows) throw new Error(`The server stopped after ${done} of ${rows} rows.`);
  return parts;
}

function show(done, rows, words) {
  const progress = element("progress");
  progress.hidden = false;
  progress.max = Math.max(rows, 1);
  progress.value = Math.max(done, 0);
  element("upload-status").textContent = words;
}
