// Uses Open WebUI as a person does, in a headless Chromium.
//
//   node drive.mjs URL FOLDER CHROMIUM NODE_MODULES < STEPS
//
// STEPS is a JSON list. A step is {"name", "do": "say" | "regenerate" | "stop" | "new", "text", "until"}: `text` is what is
// said, `until` a text that the page must show before the step is over. After each step FOLDER gets a screenshot NAME.png.
// What the page showed then goes to standard output: a JSON object, step name -> text.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [url, folder, chromium, modules] = process.argv.slice(2);
const puppeteer = createRequire(`${modules}/`)("puppeteer-core");
const steps = JSON.parse(readFileSync(0, "utf8"));
const PATIENCE_MS = 60_000;
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

const browser = await puppeteer.launch({
  executablePath: chromium,
  args: ["--no-sandbox"],
  defaultViewport: { width: 1200, height: 900 },
});
const page = await browser.newPage();
page.setDefaultTimeout(PATIENCE_MS);

const shown = () => page.evaluate(() => document.querySelector("#messages-container")?.innerText ?? "");
const until = (text) =>
  page.waitForFunction((wanted) => document.querySelector("#messages-container")?.innerText.includes(wanted), {}, text);
const idle = () => page.waitForFunction(() => !document.querySelector('button[aria-label="Stop"]'));
const click = async (selector) => {
  const all = await page.$$(selector);
  if (!all.length) throw new Error(`nothing on the page is ${selector}`);
  await all[all.length - 1].evaluate((button) => button.click());
};

const acts = {
  async new() {
    await page.goto(url, { waitUntil: "networkidle2" });
    await page.waitForSelector("#chat-input");
    await pause(1000);
  },
  async say({ text }) {
    await page.focus("#chat-input");
    await page.keyboard.sendCharacter(text);
    await page.keyboard.press("Enter");
  },
  async regenerate() {
    await click('button[aria-label="Regenerate"]');
    const again = await page.waitForSelector('xpath/.//*[not(*) and normalize-space()="Try Again"]');
    await again.click();
  },
  async stop() {
    await click('button[aria-label="Stop"]');
  },
};

const seen = {};
try {
  for (const step of steps) {
    await acts[step.do](step);
    if (step.until) await until(step.until);
    if (step.until && !step.running) await idle();
    await pause(step.settle ?? 1500);
    seen[step.name] = await shown();
    await page.screenshot({ path: `${folder}/${step.name}.png` });
  }
} catch (error) {
  await page.screenshot({ path: `${folder}/failed.png` });
  const labels = await page.$$eval("button", (all) => all.map((button) => button.getAttribute("aria-label")));
  console.error(`${error.message}\nbuttons: ${labels.filter(Boolean).join(", ")}\npage: ${await shown()}`);
  process.exitCode = 1;
}
console.log(JSON.stringify(seen));
await browser.close();
