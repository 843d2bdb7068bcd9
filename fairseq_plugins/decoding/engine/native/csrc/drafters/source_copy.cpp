// Copies what follows the position that a suffix of the output matches (Aggressive Decoding, Algorithm 1).

#include "drafters.h"

namespace spec_dec {
namespace {

class SourceCopyDrafter final : public Drafter {
public:
    SourceCopyDrafter(int64_t pad, int64_t max_match, bool reads_output)
        : pad(pad), max_match(max_match), reads_output(reads_output) {}

    int64_t max_width(const Batch& batch) const override {
        int64_t longest = 1;
        for (int64_t b = 0; b < batch.sentences(); ++b) longest = std::max(longest, batch.sources.length(b));
        return reads_output ? std::max(longest, batch.limits.max_len) : longest;
    }

    void begin_batch(const Batch&) override {}

    void draft(Work& work) override {
        const Batch& batch = work.batch;
        for (size_t index = 0; index < work.active.size(); ++index) {
            const int64_t b = work.active[index], length = batch.lengths[b];
            const int64_t* output = batch.output(b);
            const Text source{batch.sources.tokens.data() + batch.sources.begins[b], batch.sources.length(b)};
            // The output up to its last token, which would match itself.
            const Text so_far{output, reads_output ? std::max<int64_t>(length - 1, 0) : 0};
            const Match match = longest_match(source, so_far, output, length);
            if (!match.found) continue;
            const Text& text = match.is_in_output ? so_far : source;
            for (int64_t from = match.end; from < text.length && work.drafts.goes_on(index); ++from) {
                if (!work.drafts.add(index, text.tokens[from])) break;
            }
        }
    }

private:
    struct Text {
        const int64_t* tokens;
        int64_t length;
    };

    struct Match {
        bool found = false, is_in_output = false;
        int64_t end = 0;  // tokens of the text up to the end of the match
    };

    // Tokens before `end` that equal the last tokens of the output. Both texts begin alike, which counts as a token: at
    // first the whole source is copied.
    int64_t common_suffix(const Text& text, int64_t end, const int64_t* output, int64_t length,
                          bool begins_alike) const {
        int64_t count = 0;
        for (; count < max_match && count < end && count < length; ++count) {
            if (text.tokens[end - 1 - count] != output[length - 1 - count]) return count;
        }
        return count < max_match && count == end && count == length && begins_alike ? count + 1 : count;
    }

    // The unique longest match in the source; or the most recent of the longest in source and output.
    Match longest_match(const Text& source, const Text& so_far, const int64_t* output, int64_t length) const {
        Match best;
        int64_t longest = 0, second = 0;
        for (int64_t end = 0; end <= source.length; ++end) {
            const int64_t count = common_suffix(source, end, output, length, true);
            if (count > longest || (reads_output && count == longest && count > 0)) {
                second = longest;
                longest = count;
                best.end = end;
            } else {
                second = std::max(second, count);
            }
        }
        best.found = longest > (reads_output ? 0 : second);
        for (int64_t end = 1; end <= so_far.length; ++end) {
            const int64_t count = common_suffix(so_far, end, output, length, false);
            if (count > 0 && count >= longest) {
                longest = count;
                best = {true, true, end};
            }
        }
        return best;
    }

    const int64_t pad, max_match;
    const bool reads_output;
};

}  // namespace

SharedDrafter make_source_copy_drafter(int64_t pad, int64_t max_match, bool reads_output) {
    return std::make_shared<SourceCopyDrafter>(pad, max_match, reads_output);
}

}  // namespace spec_dec
