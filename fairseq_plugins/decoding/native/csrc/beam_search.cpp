#include "beam_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "kernels.h"
#include "queue.h"

namespace spec_dec {
namespace {

constexpr float MINUS_INFINITY = -HUGE_VALF;
constexpr int64_t CHUNK = 512;  // tokens of the vocabulary scored at a time; a multiple of the panel

struct ScoredToken {
    float score;
    int64_t token;
};

bool is_better(const ScoredToken& a, const ScoredToken& b) {
    return a.score != b.score ? a.score > b.score : a.token < b.token;
}

// The best `size` tokens of a row; of equal scores, those with the lower ids. A heap with the worst in front.
struct TopTokens {
    void begin(size_t new_size) {
        size = new_size;
        entries.clear();
    }

    // Only scores above this one enter.
    float threshold() const { return entries.size() < size ? MINUS_INFINITY : entries[0].score; }

    void add(const ScoredToken& token) {
        if (entries.size() < size) {
            entries.push_back(token);
        } else if (is_better(token, entries[0])) {
            std::pop_heap(entries.begin(), entries.end(), is_better);
            entries.back() = token;
        } else {
            return;
        }
        std::push_heap(entries.begin(), entries.end(), is_better);
    }

    // Adds `count` scores of the tokens from `first` on. Tokens must be added in ascending order.
    void add_scores(const float* scores, int64_t count, int64_t first) {
        const auto next = [&](int64_t begin) { return kernels().first_above(scores, begin, count, threshold()); };
        for (int64_t i = next(0); i < count; i = next(i + 1)) add({scores[i], first + i});
    }

    size_t size = 0;
    std::vector<ScoredToken> entries;
};

struct Candidate {
    float score;  // sum of log-probabilities
    int64_t token, parent;

    bool operator<(const Candidate& other) const {
        if (score != other.score) return score > other.score;
        return parent != other.parent ? parent < other.parent : token < other.token;
    }
};

// An unfinished sentence, with `beam` hypotheses.
struct Sentence {
    int64_t number = 0, length = 0, beam = 1, columns = 0;
    std::vector<int64_t> last;               // [beam], the last token of each
    std::vector<int64_t> tokens, ancestors;  // [beam][columns]; ancestors: cache row of each slot
    std::vector<float> scores, log_probs;    // [beam], [beam][columns]
};

class BeamSearchWorker final : public SearchWorker {
public:
    BeamSearchWorker(const Transformer& model, Decoder& decoder, Batch& batch, int64_t max_beam,
                     std::vector<std::vector<Hypothesis>>& outputs, std::vector<int64_t>& steps)
        : model(model), decoder(decoder), batch(batch), max_beam(max_beam), outputs(outputs), steps(steps) {}

    void admit(const std::vector<int64_t>& sentences, int64_t) override {
        decoder.read_sources(sentences);
        for (const int64_t number : sentences) {
            Sentence sentence;
            sentence.number = number;
            const int64_t beam = sentence.beam = batch.limits.of(number).beam;
            const int64_t columns = sentence.columns = batch.limits.of(number).max_len + 2;
            sentence.last.assign(beam, batch.first_token);
            sentence.tokens.resize(beam * columns);
            sentence.ancestors.resize(beam * columns);
            sentence.log_probs.resize(beam * columns);
            sentence.scores.assign(beam, 0);
            for (int64_t i = 0; i < beam * columns; ++i) sentence.ancestors[i] = i / columns;
            active.push_back(std::move(sentence));
        }
    }

    void iterate() override {
        rows.clear();
        sentence_of_row.clear();
        for (size_t index = 0; index < active.size(); ++index) {
            const Sentence& sentence = active[index];
            // At first all hypotheses are equal, and one row is enough.
            for (int64_t h = 0; h < (sentence.length == 0 ? 1 : sentence.beam); ++h) {
                rows.add(sentence.number * max_beam + h, sentence.length, sentence.last[h]);
                sentence_of_row.push_back(index);
            }
        }
        decoder.run(rows, {}, {}, [&](int64_t row) {
            const Sentence& sentence = active[sentence_of_row[row]];
            return sentence.ancestors.data() + rows.sentence[row] % max_beam * sentence.columns;
        });
        score_rows();
        size_t row = 0;
        for (size_t index = 0; index < active.size(); ++index) {
            const size_t first = row;
            while (row < sentence_of_row.size() && sentence_of_row[row] == index) ++row;
            ++steps[active[index].number];
            advance(active[index], first, row);
        }
        const auto has_ended = [&](const Sentence& sentence) { return batch.finished[sentence.number] != 0; };
        active.erase(std::remove_if(active.begin(), active.end(), has_ended), active.end());
    }

    void drop(int64_t number) override {
        const auto is_dropped = [&](const Sentence& sentence) { return sentence.number == number; };
        active.erase(std::remove_if(active.begin(), active.end(), is_dropped), active.end());
    }

    std::vector<Sentence> active;

private:
    const Transformer& model;
    Decoder& decoder;
    Batch& batch;
    const int64_t max_beam;
    std::vector<std::vector<Hypothesis>>& outputs;
    std::vector<int64_t>& steps;
    Rows rows;
    std::vector<size_t> sentence_of_row;
    std::vector<TopTokens> best, partial;  // of each row; of each row and part of the vocabulary
    std::vector<float> normalizers;        // of each row

    // Makes an empty list for each row of each part.
    void begin(std::vector<TopTokens>& lists, int64_t parts) const {
        const int64_t count = rows.size();
        if (static_cast<int64_t>(lists.size()) < parts * count) lists.resize(parts * count);
        for (int64_t i = 0; i < parts * count; ++i) {
            lists[i].begin(std::min(2 * active[sentence_of_row[i % count]].beam, batch.limits.vocabulary - 1));
        }
    }

    // Finds the best tokens after each row. At most CHUNK scores of a row are in memory at a time.
    void score_rows() {
        const Limits& limits = batch.limits;
        const int64_t count = rows.size(), vocabulary = limits.vocabulary, chunks = (vocabulary + CHUNK - 1) / CHUNK;
        std::vector<float> maxima(count * chunks), sums(count * chunks);
        // Each thread finds the best tokens of its chunks; these are merged below.
        const int64_t multiply_adds = count * model.projection->multiply_adds();
        const int64_t parts =
            std::max<int64_t>(1, std::min({threads::available(), chunks, multiply_adds / threads::MIN_MULTIPLY_ADDS}));
        begin(partial, parts);
        threads::run(parts, [&](int64_t part) {
            thread_local Floats memory;
            float* values = at_least(memory, count * CHUNK);
            for (int64_t chunk = part * chunks / parts; chunk < (part + 1) * chunks / parts; ++chunk) {
                const int64_t begin = chunk * CHUNK, size = std::min(CHUNK, vocabulary - begin);
                const int first = static_cast<int>(begin), last = static_cast<int>(begin + size);
                model.projection->run_outputs(rows.x.data(), count, first, last, {values, size});
                for (int64_t r = 0; r < count; ++r) {
                    float* chunk_scores = values + r * size;
                    const int64_t b = rows.sentence[r] / max_beam;
                    apply_temperature(chunk_scores, size, limits.of(b));
                    const float max = kernels().max(chunk_scores, size);
                    maxima[r * chunks + chunk] = max;
                    sums[r * chunks + chunk] = kernels().sum_exp(chunk_scores, size, max);
                    TopTokens& own = partial[part * count + r];
                    if (limits.of(b).unk_penalty >= 0 && !(max > own.threshold())) continue;
                    constrain(chunk_scores, begin, begin + size, limits, b, rows.position[r]);
                    own.add_scores(chunk_scores, size, begin);
                }
            }
        });
        begin(best, 1);
        normalizers.resize(count);
        for (int64_t r = 0; r < count; ++r) {
            const float max = *std::max_element(&maxima[r * chunks], &maxima[r * chunks] + chunks);
            float sum = 0;
            for (int64_t chunk = 0; chunk < chunks; ++chunk) {
                sum += sums[r * chunks + chunk] * std::exp(maxima[r * chunks + chunk] - max);
            }
            normalizers[r] = max + std::log(sum);
            refuse_nan(normalizers[r]);
            for (int64_t part = 0; part < parts; ++part) {
                for (const ScoredToken& token : partial[part * count + r].entries) best[r].add(token);
            }
        }
    }

    // Advances a sentence by one token. Of the sorted candidates, an EOS among the first `beam` finishes a hypothesis,
    // and the first `beam` others continue.
    void advance(Sentence& sentence, size_t first_row, size_t last_row) {
        const int64_t beam = sentence.beam;
        std::vector<Candidate> candidates;
        for (size_t r = first_row; r < last_row; ++r) {
            const auto parent = static_cast<int64_t>(r - first_row);
            for (const auto& [score, token] : best[r].entries) {
                candidates.push_back({score - normalizers[r] + sentence.scores[parent], token, parent});
            }
        }
        if (!candidates.empty() && batch.limits.forced(sentence.number, sentence.length) == batch.limits.eos) {
            // If the prefix forces EOS, fairseq copies the first hypothesis to all others.
            candidates.assign(sentence.length == 0 ? 1 : beam, candidates.front());
        }
        const size_t count = 2 * beam, found = std::min(count, candidates.size());
        std::partial_sort(candidates.begin(), candidates.begin() + found, candidates.end());
        // If fewer tokens are allowed, the rest of the beam is filled with impossible candidates.
        candidates.resize(count, {MINUS_INFINITY, 0, 0});
        const bool is_last = sentence.length >= batch.limits.of(sentence.number).max_len;
        std::vector<Candidate> continuing;
        bool has_end = false;
        for (size_t i = 0; i < count; ++i) {
            const bool is_end = candidates[i].token == batch.limits.eos && candidates[i].score > MINUS_INFINITY;
            if (!is_end) {
                continuing.push_back(candidates[i]);
            } else if (i < static_cast<size_t>(beam)) {
                has_end = true;
                finish(sentence, candidates[i]);
            }
        }
        const auto num_finished = static_cast<int64_t>(outputs[sentence.number].size());
        if (has_end && (is_last || num_finished == beam)) {
            batch.finished[sentence.number] = 1;
            return;
        }
        if (is_last) throw std::domain_error("EOS is forbidden at the maximum length");
        // Each of the `beam` hypotheses ends once, so of 2 * beam candidates enough continue. fairseq's cands_to_ignore
        // is for small vocabularies, which `has_enough` keeps from the kernels.
        reorder(sentence, continuing);
    }

    // Adds a finished hypothesis to the outputs, up to `beam` of them.
    void finish(const Sentence& sentence, const Candidate& end) {
        std::vector<Hypothesis>& finished = outputs[sentence.number];
        if (static_cast<int64_t>(finished.size()) == sentence.beam) return;
        Hypothesis hypothesis;
        const int64_t columns = sentence.columns;
        const int64_t* ancestor = sentence.ancestors.data() + end.parent * columns;
        for (int64_t column = 1; column <= sentence.length; ++column) {
            hypothesis.tokens.push_back(sentence.tokens[ancestor[column] * columns + column]);
            hypothesis.log_probs.push_back(sentence.log_probs[ancestor[column] * columns + column]);
        }
        hypothesis.tokens.push_back(batch.limits.eos);
        hypothesis.log_probs.push_back(end.score - sentence.scores[end.parent]);
        hypothesis.score = end.score;
        finished.push_back(std::move(hypothesis));
    }

    // Continues the chosen candidates: each row gets the ancestors of its parent.
    void reorder(Sentence& sentence, const std::vector<Candidate>& chosen) {
        const int64_t next = ++sentence.length, beam = sentence.beam, columns = sentence.columns;
        std::vector<int64_t> ancestors(beam * next);
        std::vector<float> scores(beam);
        for (int64_t i = 0; i < beam; ++i) {
            const int64_t parent = chosen[i].parent;
            std::copy_n(sentence.ancestors.begin() + parent * columns, next, ancestors.begin() + i * next);
            scores[i] = chosen[i].score;
            sentence.log_probs[i * columns + next] = scores[i] - sentence.scores[parent];
            sentence.tokens[i * columns + next] = sentence.last[i] = chosen[i].token;
        }
        for (int64_t i = 0; i < beam; ++i) {
            std::copy_n(ancestors.begin() + i * next, next, sentence.ancestors.begin() + i * columns);
        }
        sentence.scores = std::move(scores);
    }
};

}  // namespace

BeamSearch::BeamSearch(std::shared_ptr<const Transformer> model, int64_t max_beam)
    : max_beam(max_beam), model(model), decoder(model) {}

void BeamSearch::begin(Batch& batch) {
    batch.begin();
    decoder.begin(batch.sources, batch.columns + 1, max_beam);
}

std::unique_ptr<SearchWorker> BeamSearch::worker(Batch& batch, std::vector<std::vector<Hypothesis>>& outputs,
                                                 std::vector<int64_t>& steps) {
    return std::make_unique<BeamSearchWorker>(*model, decoder, batch, max_beam, outputs, steps);
}

std::vector<std::vector<Hypothesis>> BeamSearch::run(Batch& batch, const RunOptions& options,
                                                     std::vector<int64_t>& steps) {
    begin(batch);
    const int64_t count = batch.sentences(), workers = std::min(threads::available(), count);
    std::vector<std::vector<Hypothesis>> outputs(count);
    steps.assign(count, 0);
    if (count == 0) return outputs;
    const int64_t most =
        std::max<int64_t>(1, std::min(options.micro_batch_rows / max_beam, (count + workers - 1) / workers));
    std::vector<int64_t> waiting(count);
    std::iota(waiting.begin(), waiting.end(), 0);
    Queue queue(std::move(waiting));
    const auto work = [&](int64_t number) {
        BeamSearchWorker worker(*model, decoder, batch, max_beam, outputs, steps);
        double checked = seconds_now();
        while (!queue.has_failed) {
            worker.admit(queue.take(most - static_cast<int64_t>(worker.active.size())), most);
            if (worker.active.empty()) break;
            worker.iterate();
            options.check(number, checked);
        }
    };
    timed(seconds[VERIFY], [&] { queue.run(workers, work); });
    return outputs;
}

}  // namespace spec_dec
